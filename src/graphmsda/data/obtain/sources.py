"""Where the files of each benchmark come from: facts only, each with where it was found.

Addresses cannot be tried where this was written, so each was taken from at least one public program that uses it, and a
checksum is given only where a project other than ours publishes it. Sites that want a person in front of a browser
(Google Drive above all) are left to one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remote:
    """One published file.

    Attributes:
        file: Its name; that of a folder where a person has to unpack it.
        domain: The domain it belongs to, which may also be there in another form.
        folder: Where it belongs, below the benchmark's folder; empty for that folder itself.
        page: Where a person finds it.
        licence: Under which it may be used, as far as its publisher says.
        urls: Addresses to fetch it from, tried in this order; none means that a person has to.
        size: Its bytes, where they are known.
        md5: Its checksum, where one is published.
        instead: Files or folders below the benchmark's folder that serve as well while the domain is not complete.
        unpack: Unpack it into `folder`, without this leading folder in its names, because no reader reads it packed.
        hint: What to do where it cannot be had.
    """

    file: str
    domain: str
    folder: str
    page: str
    licence: str
    urls: tuple[str, ...] = ()
    size: int | None = None
    md5: str | None = None
    instead: tuple[str, ...] = ()
    unpack: str | None = None
    hint: str = ""

    @property
    def place(self) -> str:
        """Its path below the benchmark's folder."""
        return f"{self.folder}/{self.file}" if self.folder else self.file


# Names, addresses and md5: torchvision/datasets/mnist.py; sizes: as LeCun's page gave them, in many a README since;
# licence: as the Keras documentation gives it.
_MNIST = [
    Remote(
        file,
        "mt",
        "mnist",
        "http://yann.lecun.com/exdb/mnist/",
        "CC BY-SA 3.0",
        (f"https://ossci-datasets.s3.amazonaws.com/mnist/{file}", f"http://yann.lecun.com/exdb/mnist/{file}"),
        size,
        md5,
    )
    for file, size, md5 in (
        ("train-images-idx3-ubyte.gz", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    )
]

# The archive that Ganin's page links to lies on Google Drive (0B9Z4d7lAwbnTNDdNeFlERWRGNVk). The address here is a copy
# of it that pytorch-adapt publishes with its md5 (src/pytorch_adapt/datasets/mnistm.py), which also tells what is in
# it: mnist_m/mnist_m_train/, mnist_m/mnist_m_train_labels.txt and the same for test.
_MNIST_M = Remote(
    "mnist_m.tar.gz",
    "mm",
    "mnistm",
    "http://yaroslav.ganin.net/",
    "not stated (made from MNIST and the photographs of BSDS500)",
    ("https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi",),
    md5="859df31c91afe82e80e5012ba928f279",
    unpack="mnist_m",
    hint="or build one: graphmsda data build-mnist-m --mnist {place} --photographs DIR --out {place}/mnistm.zip",
)

# Addresses and md5: torchvision/datasets/usps.py.
_USPS = [
    Remote(
        file,
        "up",
        "usps",
        "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
        "not stated",
        (f"https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/{file}",),
        md5=md5,
    )
    for file, md5 in (
        ("usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
        ("usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
    )
]

# Addresses and md5: torchvision/datasets/svhn.py; sizes: the number of bytes that many course programs expect;
# licence: the publisher's page.
_SVHN = [
    Remote(
        f"{part}_32x32.mat",
        "sv",
        "svhn",
        "http://ufldl.stanford.edu/housenumbers/",
        "non-commercial use only",
        (f"http://ufldl.stanford.edu/housenumbers/{part}_32x32.mat",),
        size,
        md5,
    )
    for part, size, md5 in (
        ("train", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
        ("test", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
    )
]

# SynthDigits.zip, which holds both, is on Google Drive (0B9Z4d7lAwbnTSVR1dEFSRUFxOUU); no checksum is published.
_SYN = [
    Remote(
        f"synth_{part}_32x32.mat",
        "syn",
        "syn",
        "https://drive.google.com/file/d/0B9Z4d7lAwbnTSVR1dEFSRUFxOUU/view (SynthDigits.zip)",
        "not stated",
        hint="or render one: graphmsda data render-digits --out {place}/syn.zip",
    )
    for part in ("train", "test")
]

# The archive of the Berkeley page lies on Google Drive; copies elsewhere come without a published checksum.
_OFFICE = [
    Remote(
        domain,
        domain,
        "",
        "https://drive.google.com/file/d/0B4IapRTv9pJ1WGZVd1VDMmhwdlE/view (domain_adaptation_images.tar.gz, unpacked)",
        "not stated (for research)",
    )
    for domain in ("amazon", "dslr", "webcam")
]

# The folder of Li et al. on Google Drive; DomainBed and many others lead there.
_PACS_PAGE = "https://drive.google.com/drive/folders/0B6x7gtvErXgfUU1WcGY5SzdwZVk?resourcekey=0-2fvpQY_QSyJf2uIECzqPuQ"
_PACS = [
    Remote(
        domain,
        domain,
        "",
        f"{_PACS_PAGE} (pacs.zip or kfold, unpacked; the split lists *_kfold.txt may lie beside)",
        "not stated (for research)",
    )
    for domain in ("art_painting", "cartoon", "photo", "sketch")
]

# Addresses: the "cleaned version" at http://ai.bu.edu/M3SDA/, where clipart and painting are those under groundtruth/
# (those without it are the challenge's, whose test images have no classes). Sizes and md5: the repository
# datasets-mila/datasets--domainnet (md5sums and its git-annex keys). The lists agree with copies at hand.
_DOMAINNET_PAGE = "http://ai.bu.edu/M3SDA/"
_DOMAINNET_LICENCE = "non-commercial research and education only (fair use)"
_DOMAINNET_ROOT = "http://csr.bu.edu/ftp/visda/2019/multi-source"
_DOMAINNET = [
    Remote(
        f"{domain}.zip",
        domain,
        "",
        _DOMAINNET_PAGE,
        _DOMAINNET_LICENCE,
        (f"{_DOMAINNET_ROOT}/{'groundtruth/' * (domain in ('clipart', 'painting'))}{domain}.zip",),
        size,
        md5,
        instead=(domain, f"DomainNet/{domain}", f"images/{domain}"),
    )
    for domain, size, md5 in (
        ("clipart", 1_270_909_081, "cd0d8f2d77a4e181449b78ed62bccf1e"),
        ("infograph", 4_338_659_804, "720380b86f9e6ab4805bb38b6bd135f8"),
        ("painting", 3_679_366_174, "1ae32cdb4f98fe7ab5eb0a351768abfd"),
        ("quickdraw", 459_920_701, "bdc1b6f09f277da1a263389efe0c7a66"),
        ("real", 6_062_039_589, "dcc47055e8935767784b7162e7c7cca6"),
        ("sketch", 2_633_992_926, "658d8009644040ff7ce30bb2e820850f"),
    )
] + [
    Remote(
        file,
        file.partition("_")[0],
        "",
        _DOMAINNET_PAGE,
        _DOMAINNET_LICENCE,
        (f"{_DOMAINNET_ROOT}/domainnet/txt/{file}",),
        size,
        md5,
        instead=(f"lists/{file}", f"splits/{file}"),
    )
    for file, size, md5 in (
        ("clipart_train.txt", 1_443_819, "b4349693a7f9c05c53955725c47ed6cb"),
        ("clipart_test.txt", 628_917, "f5ddbcfd657a3acf9d0f7da10db22565"),
        ("infograph_train.txt", 1_683_098, "379b50054f4ac2018dca4f89421b92d9"),
        ("infograph_test.txt", 728_028, "779626b50869edffe8ea6941c3755c71"),
        ("painting_train.txt", 2_241_901, "7db0e7ca73ad9982f6e1f7f3ef372c0a"),
        ("painting_test.txt", 971_888, "232b35dc53f26d414686ae579e38d9b5"),
        ("quickdraw_train.txt", 5_164_600, "b732ced3939ac8efdd8c0a889dca56cc"),
        ("quickdraw_test.txt", 2_213_400, "c1a828fdfe216fb109f1c0083a252c6f"),
        ("real_train.txt", 4_440_944, "8ebf02c2075fadd564705f0dc7cd6291"),
        ("real_test.txt", 1_911_327, "6098816791c3ebed543c71ffa11b9054"),
        ("sketch_train.txt", 1_960_222, "1233bd18aa9a8a200bf4cecf1c34ef3e"),
        ("sketch_test.txt", 850_581, "d8a222e4672cfd585298aa14d02ea441"),
    )
]

# ImageNet weights are not here: torchvision's own functions fetch and check them, into its cache.
SOURCES: dict[str, list[Remote]] = {
    "digits-five": [*_MNIST, _MNIST_M, *_USPS, *_SVHN, *_SYN],
    "office-31": _OFFICE,
    "pacs": _PACS,
    "domainnet": _DOMAINNET,
}

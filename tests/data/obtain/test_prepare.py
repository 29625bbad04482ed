import dataclasses
import hashlib
import io
import json
import re
import tarfile
import zipfile

import pytest
from tests.data.obtain.server import serving

from graphmsda.data.benchmarks.catalogue import BENCHMARKS
from graphmsda.data.obtain import download
from graphmsda.data.obtain import prepare as module
from graphmsda.data.obtain.prepare import prepare, prepare_page
from graphmsda.data.obtain.sources import SOURCES
from graphmsda.errors import UserError


def tar_of(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


MNIST_M = {
    "mnist_m/mnist_m_train/00000000.png": b"picture",
    "mnist_m/mnist_m_train_labels.txt": b"00000000.png 5\n",
    "mnist_m/mnist_m_test/00000000.png": b"another",
    "mnist_m/mnist_m_test_labels.txt": b"00000000.png 3\n",
    "mnist_m/._hidden": b"x",
}


@pytest.fixture
def site(monkeypatch):
    """All public addresses replaced by a local server that has every file, with the checksum of what it has."""
    monkeypatch.setattr(download, "PAUSES", (0.0,))
    with serving() as site:
        for name, remotes in SOURCES.items():
            local = []
            for remote in remotes:
                content = tar_of(MNIST_M) if remote.unpack else f"the content of {remote.place}".encode()
                if remote.urls:
                    url = site.add(f"/{name}/{remote.place}", content)
                    remote = dataclasses.replace(remote, urls=(url,), md5=hashlib.md5(content).hexdigest())
                local.append(remote)
            monkeypatch.setitem(module.SOURCES, name, local)
        yield site


def states(report):
    return {row.remote.file: row.state for row in report.rows}


def alter(monkeypatch, name, file, **changes):
    remotes = [dataclasses.replace(one, **changes) if one.file == file else one for one in module.SOURCES[name]]
    monkeypatch.setitem(module.SOURCES, name, remotes)


def test_the_facts_are_well_formed():
    assert set(SOURCES) == set(BENCHMARKS)
    for name, remotes in SOURCES.items():
        assert {remote.domain for remote in remotes} == set(BENCHMARKS[name].domains)
        assert len({remote.place for remote in remotes}) == len(remotes)
        for remote in remotes:
            assert remote.md5 is None or re.fullmatch("[0-9a-f]{32}", remote.md5)
            assert all(re.fullmatch(r"https?://[\w./~-]+", url) for url in remote.urls)
            assert remote.page.startswith("http")
            assert remote.licence


def test_what_can_be_fetched_is_fetched_to_where_the_readers_look(site, tmp_path):
    report = prepare("digits-five", tmp_path)
    place = tmp_path / "digits-five"
    assert [row.remote.file for row in report.missing] == ["synth_train_32x32.mat", "synth_test_32x32.mat"]
    assert set(states(report).values()) == {"fetched", "missing"}
    assert set(BENCHMARKS["digits-five"].missing(place)) == {"syn"}
    assert (place / "svhn/train_32x32.mat").read_bytes() == b"the content of svhn/train_32x32.mat"
    # MNIST-M is unpacked, and nothing else of the archive stays.
    assert sorted(path.name for path in (place / "mnistm").iterdir()) == [
        "mnist_m_test",
        "mnist_m_test_labels.txt",
        "mnist_m_train",
        "mnist_m_train_labels.txt",
    ]
    assert (place / "mnistm/mnist_m_train/00000000.png").read_bytes() == b"picture"


def test_the_second_time_nothing_is_fetched(site, tmp_path):
    prepare("digits-five", tmp_path)
    asked = len(site.asked)
    report = prepare("digits-five", tmp_path)
    assert len(site.asked) == asked
    assert set(states(report).values()) == {"there", "missing"}
    notes = {row.remote.file: row.note for row in report.rows}
    assert notes["usps.bz2"] == "published checksum"
    assert notes["mnist_m.tar.gz"] == "as mnistm/mnist_m_train"


def test_domains_that_are_there_in_another_form_are_not_fetched(site, tmp_path):
    place = tmp_path / "digits-five"
    place.mkdir()
    for name in ("mnist", "mnistm", "usps", "svhn", "syn"):
        with zipfile.ZipFile(place / f"{name}.zip", "w") as archive:
            archive.writestr("train/1/1.png", b"x")
    report = prepare("Digits-Five", tmp_path)
    assert site.asked == []
    assert report.missing == []
    assert "as syn.zip" in prepare_page(report)
    report.require()


def test_a_part_of_a_domain_is_completed(site, tmp_path):
    (tmp_path / "domainnet" / "clipart" / "bird").mkdir(parents=True)
    report = prepare("domainnet", tmp_path, only=["clipart"])
    assert states(report) == {"clipart.zip": "there", "clipart_train.txt": "fetched", "clipart_test.txt": "fetched"}
    assert BENCHMARKS["domainnet"].missing(tmp_path / "domainnet").keys().isdisjoint({"clipart"})


def test_domainnet_as_a_whole(site, tmp_path):
    report = prepare("domainnet", tmp_path)
    assert len(report.rows) == 18
    assert set(states(report).values()) == {"fetched"}
    assert BENCHMARKS["domainnet"].missing(tmp_path / "domainnet") == {}


def test_what_has_to_be_fetched_by_hand(site, tmp_path):
    report = prepare("office-31", tmp_path)
    page = prepare_page(report)
    assert "missing: amazon, dslr, webcam" in page
    assert "get from  https://drive.google.com/file/d/0B4IapRTv9pJ1WGZVd1VDMmhwdlE/view" in page
    assert f"put into  {tmp_path / 'office-31'}" in page
    for domain in ("amazon", "dslr", "webcam"):
        (tmp_path / "office-31" / domain / "images" / "mug").mkdir(parents=True)
    assert prepare("office-31", tmp_path).missing == []


def test_the_page_tells_what_to_do(site, tmp_path):
    root = tmp_path / "with space"
    report = prepare("digits-five", root)
    page = prepare_page(report)
    assert page.splitlines()[0] == f"Digits-five in {root / 'digits-five'}"
    assert re.search(r"mnist/train-images-idx3-ubyte.gz +9.9 MB +fetched +published checksum", page)
    assert re.search(r"syn/synth_train_32x32.mat +- +missing +to be fetched by hand", page)
    assert "missing: synth_train_32x32.mat, synth_test_32x32.mat" in page
    assert f"put into  {root / 'digits-five' / 'syn'}" in page
    assert f"graphmsda data render-digits --out '{root / 'digits-five'}'/syn.zip" in page
    assert "svhn: non-commercial use only" in page
    with pytest.raises(UserError, match=r"digits-five: 2 of 11 files are missing in .*; put them where the list above"):
        report.require()


def test_one_failure_does_not_keep_the_others(site, tmp_path):
    site.pages["/digits-five/usps/usps.bz2"].status = 404
    site.pages["/digits-five/svhn/test_32x32.mat"].die = [3, 0]
    site.pages["/digits-five/mnist/t10k-labels-idx1-ubyte.gz"].content = b"another"
    report = prepare("digits-five", tmp_path)
    by_file = {row.remote.file: row for row in report.rows}
    assert by_file["usps.bz2"].note == "the server answered 404 Not Found"
    assert by_file["test_32x32.mat"].note == "the connection ended after 3 bytes of 34 bytes, 2 times in a row"
    assert "is not the file expected" in by_file["t10k-labels-idx1-ubyte.gz"].detail
    assert by_file["usps.t.bz2"].state == "fetched"
    page = prepare_page(report)
    assert "the server answered 404 Not Found" in page
    assert "as published; it is kept as" in page
    assert "graphmsda data build-mnist-m" not in page  # MNIST-M is there


def test_a_second_address_is_tried(site, tmp_path, monkeypatch):
    good = f"{site.address}/digits-five/usps/usps.bz2"
    alter(monkeypatch, "digits-five", "usps.bz2", urls=(f"{site.address}/gone", good))
    report = prepare("digits-five", tmp_path, only=["usps.bz2"])
    assert states(report) == {"usps.bz2": "fetched"}
    assert [path for path, _ in site.asked] == ["/gone", "/digits-five/usps/usps.bz2"]


def test_a_file_that_is_there_but_another_one_is_kept(site, tmp_path):
    place = tmp_path / "digits-five" / "usps"
    place.mkdir(parents=True)
    (place / "usps.bz2").write_bytes(b"mine")
    report = prepare("digits-five", tmp_path, only=["usps.bz2"])
    assert "move it away" in report.missing[0].detail
    assert (place / "usps.bz2").read_bytes() == b"mine"
    assert site.asked == []


def test_where_no_checksum_is_published_the_first_is_recorded(site, tmp_path, monkeypatch):
    alter(monkeypatch, "digits-five", "usps.bz2", md5=None)
    assert prepare("digits-five", tmp_path, only=["usps.bz2"]).rows[0].note == "first seen"
    seen = json.loads((tmp_path / "digits-five" / "checksums.json").read_text())
    assert list(seen) == ["usps/usps.bz2"]
    assert prepare("digits-five", tmp_path, only=["usps.bz2"]).rows[0].note == "checksum seen before"


@pytest.mark.parametrize("name", ["mnist", "mt", "mnist/"])
def test_only_takes_folders_and_domains(site, tmp_path, name):
    assert len(prepare("digits-five", tmp_path, only=[name]).rows) == 4


def test_unknown_names(site, tmp_path):
    with pytest.raises(UserError, match="--only uspz: no such file; choose from train-images"):
        prepare("digits-five", tmp_path, only=["uspz"])
    with pytest.raises(UserError, match="torchvision fetches"):
        prepare("weights", tmp_path)
    with pytest.raises(UserError, match="imagenet"):
        prepare("imagenet", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/evil.txt", "mnist_m/../../evil.txt"])
def test_an_archive_cannot_write_elsewhere(site, tmp_path, monkeypatch, name):
    content = tar_of({**MNIST_M, name: b"x"})
    site.pages["/digits-five/mnistm/mnist_m.tar.gz"].content = content
    alter(monkeypatch, "digits-five", "mnist_m.tar.gz", md5=None)
    report = prepare("digits-five", tmp_path, only=["mnistm"])
    assert "more than it should" in report.missing[0].detail
    assert [path.name for path in (tmp_path / "digits-five/mnistm").iterdir()] == ["mnist_m.tar.gz"]
    assert list(tmp_path.rglob("evil*")) == []


@pytest.mark.parametrize(
    "content", [b"no archive", tar_of(MNIST_M)[:-40], tar_of({})], ids=["no archive", "cut off", "empty"]
)
def test_a_damaged_archive_is_named(site, tmp_path, monkeypatch, content):
    site.pages["/digits-five/mnistm/mnist_m.tar.gz"].content = content
    alter(monkeypatch, "digits-five", "mnist_m.tar.gz", md5=None)
    detail = prepare("digits-five", tmp_path, only=["mnistm"]).missing[0].detail
    assert "mnist_m.tar.gz: " in detail
    assert "remove it" in detail
    assert [path.name for path in (tmp_path / "digits-five/mnistm").iterdir()] == ["mnist_m.tar.gz"]


def test_an_archive_put_there_by_hand_is_unpacked(site, tmp_path):
    place = tmp_path / "digits-five" / "mnistm"
    place.mkdir(parents=True)
    (place / "mnist_m.tar.gz").write_bytes(site.pages["/digits-five/mnistm/mnist_m.tar.gz"].content)
    assert states(prepare("digits-five", tmp_path, only=["mnistm"])) == {"mnist_m.tar.gz": "there"}
    assert site.asked == []
    assert (place / "mnist_m_train_labels.txt").exists()


def test_an_interrupt_keeps_what_came(site, tmp_path, monkeypatch):
    real, seen = module.fetch, []

    def interrupted(url, path, **options):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(url)
        return real(url, path, **options)

    monkeypatch.setattr(module, "fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare("domainnet", tmp_path)
    assert sorted(path.name for path in (tmp_path / "domainnet").iterdir()) == ["clipart.zip", "infograph.zip"]


def test_progress_is_told_on_standard_error(site, tmp_path, capsys):
    prepare("digits-five", tmp_path, only=["usps", "syn"], progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "usps/usps.bz2: fetched, published checksum" in err
    assert "syn" not in err  # nothing happened there: the page tells

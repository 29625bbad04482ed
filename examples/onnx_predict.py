"""Classify pictures with an exported model and nothing but onnxruntime and Pillow.

python onnx_predict.py export.onnx picture.jpg more.png
"""

import json
import sys

import numpy as np  # comes with onnxruntime
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
about = json.loads(session.get_modelmeta().custom_metadata_map["graphmsda"])
_, height, width = about["shape"]
for name in sys.argv[2:]:
    picture = ImageOps.exif_transpose(Image.open(name)).convert("RGB")
    picture = picture.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=3.0)
    pixels = np.asarray(picture).transpose(2, 0, 1)[None]  # (1, 3, H, W), uint8
    (classes,), (domains,) = session.run(None, {"samples": pixels})
    label, domain = about["classes"][classes.argmax()], about["domains"][domains.argmax()]
    print(f"{name}: {label} ({100 * classes.max():.1f} %), most like {domain}")

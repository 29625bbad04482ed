"""A trained model as one file that others can run: ONNX, TorchScript or plain weights."""

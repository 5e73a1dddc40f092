"""Students in a form that runs without PyTorch: ONNX in float32 and with int8 weights, checked and timed."""

"""Distillation of pre-trained language encoders: data, models, methods, training, evaluation."""

__version__ = "0.1.0"

"""Layers of Hugging Face's models, by AWS's names."""

"""The GPU bank: what other programs may import."""

"""The OCDBT key-value layout of Orbax checkpoints: written and read without TensorStore."""

"""Decoders, tokenizers, and the files that hold them."""

import os

# transformers, whose tokenizers are used here, says when it is imported that it found
# no PyTorch. Nothing here needs PyTorch, so that advice would only mislead.
os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")

"""The lexical judge: what one text says beside another, without a model."""

"""Launchers: flags in, files out."""

"""What a run needs of named hardware, told without that hardware."""

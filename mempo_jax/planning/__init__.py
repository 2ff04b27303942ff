"""Plans what a run needs of named hardware, without that hardware."""

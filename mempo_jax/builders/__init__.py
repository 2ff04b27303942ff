"""From a config to objects: policies, task suites, engines, models of the memory."""

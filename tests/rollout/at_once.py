"""A stand-in for an engine whose requests all end as soon as they are waited for."""


class AtOnce:
    """Subclasses say in ``generate`` what is sampled."""

    _asked = None

    def submit(self, requests, **sampling):
        assert self._asked is None, "the last requests have not been waited for"
        if requests:
            self._asked = requests, sampling

    def wait(self, until=None):
        if self._asked is None:
            return []
        requests, sampling = self._asked
        self._asked = None
        return list(zip(requests, self.generate(requests, **sampling), strict=True))

    def cancel(self):
        self._asked = None

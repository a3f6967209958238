"""The error of a request that the server refuses."""


class RequestError(Exception):
    """A request that is refused, with the status and the reason of the answer."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status, self.reason = status, reason

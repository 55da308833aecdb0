"""What goes wrong on the user's side has one type."""


class Error(Exception):
    """A mistake in the use of Lockstep: what kind, where, and what to do.

    Attributes:
        kind: a snake_case word, for programs.
        where: the name of what was used wrongly.
        message: one sentence that says what to do.
    """

    def __init__(self, kind: str, where: str, message: str):
        super().__init__(f"{where}: {message}")
        self.kind = kind
        self.where = where
        self.message = message

    def __reduce__(self):
        return type(self), (self.kind, self.where, self.message)

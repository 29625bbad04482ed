"""The one exception that means "the user can mend this"."""


class UserError(Exception):
    """A mistake in what was asked, told in one sentence.

    The sentence names the file or argument, what was found, what was expected and what to do. The command line
    prints it alone and exits with code 2; from Python it is an ordinary exception.
    """

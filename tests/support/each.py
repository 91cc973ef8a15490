"""A check of many things in one test: where the check is quick, a test for each thing takes longer than all checks."""


def for_each(things):
    """Let a test run its check for each of these, with what the check takes or a tuple of that, and tell all failures.

    Parameters
    ----------
    things : iterable
        What is checked; at least one.
    """

    def of(check):
        def test():
            failed, count = [], 0
            for thing in things:
                count += 1
                try:
                    check(*thing) if isinstance(thing, tuple) else check(thing)
                except AssertionError as error:
                    failed.append(f"{thing}: {error}")
            assert not failed, "\n".join([f"{len(failed)} of {count}:", *failed])
            assert count, "there is nothing to check"

        test.__name__, test.__qualname__, test.__doc__ = check.__name__, check.__qualname__, check.__doc__
        test.__module__, test.pytestmark = check.__module__, getattr(check, "pytestmark", [])
        return test

    return of

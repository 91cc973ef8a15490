from hypothesis import settings

# A deadline is a timed assertion; the first call of a torch function alone takes longer than its default.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

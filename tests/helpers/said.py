"""Lines that psframe says, apart from those of a launcher."""


def told(ended):
    """Return psframe's own lines of stderr; a launcher adds lines of its own."""
    return [line for line in ended.err.splitlines() if "psframe:" in line]

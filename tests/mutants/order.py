"""A plugin of pytest: tests run in the order of the files that it was given, below a folder those over ranks first.

They are what most often notices a defect that tests near to it have not. The suite itself begins with the longest,
which is for several workers.
"""

import pytest

from tests.mutants.near import slowness


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    places = {name: place for place, name in enumerate(config.args)}

    def place(item):
        file = item.nodeid.partition("::")[0]
        return places.get(file, len(places)), not file.startswith("tests/ranks/"), slowness(file)

    items.sort(key=place)

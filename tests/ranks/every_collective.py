"""Every collective that moves data, in the forms that differ in code."""

#: of the contract: name and arguments, and a user's own; the cases take the trait ``supports_tree_sum`` for granted,
#: and where a node does not share the parameters ``broadcasts_any_size``
FORMS = (
    ("shared", {}),
    ("shared", {"reducers": "all"}),
    ("shared", {"reducers": "server"}),
    ("shared", {"reducers": "all", "chunk_bytes": 8192}),
    ("shared", {"reducers": "all", "domains": 2}),
    ("hierarchical", {}),
    ("buffer", {}),
    ("buffer", {"bucket_bytes": 0, "gather": "gather"}),
    ("buffer", {"bucket_bytes": 64}),
    ("object", {}),
    ("tests.helpers.own:Rows", {}),
)
#: of whole runs, as a config names them; what trains over each takes them from here
COLLECTIVES = ("shared", "{name: shared, chunk_bytes: 4096}", "hierarchical", "buffer", "object")

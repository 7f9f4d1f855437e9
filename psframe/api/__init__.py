"""psframe from Python: runs and their networks (:mod:`psframe.api.runs`), training from a script or notebook."""

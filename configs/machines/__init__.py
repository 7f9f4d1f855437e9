"""Machine profiles, for psframe.predict."""

"""Causes of what went wrong in a job, or makes it slow, in sentences: from its incidents, or its records."""

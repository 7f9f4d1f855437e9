"""Prediction of the seconds of an epoch on machines that are not at hand."""

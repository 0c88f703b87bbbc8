"""The composition root: from a resolved plan to the objects of the layers below, and from their results to files."""

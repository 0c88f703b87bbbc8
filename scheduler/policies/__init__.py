"""Queue policies, one a file, and how one is made from its name and options (:mod:`scheduler.policies.build`)."""

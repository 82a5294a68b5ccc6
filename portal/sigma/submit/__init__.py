"""The page on which a user submits a job: a form and a job file, which are two views of the same job."""

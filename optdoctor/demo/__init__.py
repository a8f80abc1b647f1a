"""`optdoctor demo`: one sick training, its cause, its treatment, and the second run; offline."""

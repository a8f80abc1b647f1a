"""`python -m optdoctor`."""

from optdoctor.cli import main

main()

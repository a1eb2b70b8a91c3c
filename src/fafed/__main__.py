from fafed.cli import main

main()

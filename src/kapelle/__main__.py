from kapelle.cli.main import main

main()

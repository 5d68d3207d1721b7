"""`python -m nodeagent.exporter [--config FILE]`: metrics of a node's GPUs, until SIGTERM."""

from nodeagent.exporter.main import main

if __name__ == "__main__":
    main()

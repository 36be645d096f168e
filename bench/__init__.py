"""The figures of Kapelle, each beside a bare limit that is measured in the same run."""

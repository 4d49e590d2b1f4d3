"""Installing, migrating, upgrading, backing up and replicating the database."""

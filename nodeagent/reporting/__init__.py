"""What the reporter is made of, Temporal aside: edges, the spool on disk, orders to the plugin, settings."""

-- Locks alembic's version table until the end of the transaction, so that checkpoints and migrations run one at a time.
-- Only auditors may call it. Without this function, a checkpoint would need a login that may change the table.
CREATE FUNCTION compaction_store.checkpoint_turn() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE compaction_store.alembic_version IN SHARE ROW EXCLUSIVE MODE;
END
$$;

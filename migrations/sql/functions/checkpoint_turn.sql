-- One checkpoint after the other, and none beside a migration: the lock is held to the end of the transaction. Only an
-- auditor, who may call this, or a login that may change the table can take it.
CREATE FUNCTION compaction_store.checkpoint_turn() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    LOCK TABLE compaction_store.alembic_version IN SHARE ROW EXCLUSIVE MODE;
END
$$;

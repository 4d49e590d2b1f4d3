-- Raises an error if Citus has distributed the tables. Called by functions that need two threads, or a local table, in
-- one call.
CREATE FUNCTION compaction_store.refuse_distributed(p_error text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF compaction_store.is_distributed() THEN
        RAISE EXCEPTION '%', p_error USING ERRCODE = 'CS015';
    END IF;
END
$$;

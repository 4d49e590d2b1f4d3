-- Keep the schema, because it has alembic's version table.
DROP TABLE
    compaction_store.events, compaction_store.compactions, compaction_store.messages, compaction_store.heads,
    compaction_store.threads, compaction_store.staged, compaction_store.turns
    CASCADE;
-- Only a cluster has this table.
DROP TABLE IF EXISTS compaction_store.names CASCADE;

DO $$
DECLARE
    v_function record;
BEGIN
    FOR v_function IN
        SELECT format('%I.%I', n.nspname, p.proname) || '(' || pg_get_function_identity_arguments(p.oid) || ')' AS name
        FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = 'compaction_store'
    LOOP
        EXECUTE format('DROP FUNCTION IF EXISTS %s CASCADE', v_function.name);
    END LOOP;
END
$$;

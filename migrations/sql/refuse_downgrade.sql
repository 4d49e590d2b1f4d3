-- Runs before all tables are dropped. Policies would hide other tenants' rows from the check, so row-level security is
-- disabled first. This also locks each table, so that nothing is appended between the check and the drop.
DO $$
DECLARE
    v_table text;
    v_found boolean;
BEGIN
    FOREACH v_table IN ARRAY ARRAY['threads', 'heads', 'messages', 'compactions', 'events'] LOOP
        EXECUTE format('ALTER TABLE compaction_store.%I DISABLE ROW LEVEL SECURITY', v_table);
        EXECUTE format('SELECT EXISTS (SELECT FROM compaction_store.%I)', v_table) INTO v_found;
        IF v_found THEN
            RAISE EXCEPTION 'this would delete messages or records; to do that, run: alembic -x delete-everything=yes'
                USING ERRCODE = 'CS006';
        END IF;
    END LOOP;
END
$$;

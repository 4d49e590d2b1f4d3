-- Stands before the removal of every table. The tables are locked first, so that nothing is appended between the look and
-- the removal; they are going anyway, so their policies, which would hide other tenants, go first.
DO $$
DECLARE
    v_table text;
    v_found boolean;
BEGIN
    FOREACH v_table IN ARRAY ARRAY['threads', 'heads', 'messages', 'compactions', 'events'] LOOP
        EXECUTE format('ALTER TABLE compaction_store.%I DISABLE ROW LEVEL SECURITY', v_table);
        EXECUTE format('SELECT EXISTS (SELECT FROM compaction_store.%I)', v_table) INTO v_found;
        IF v_found THEN
            RAISE EXCEPTION 'there are messages or records, which this would delete: alembic -x delete-everything=yes'
                USING ERRCODE = 'CS006';
        END IF;
    END LOOP;
END
$$;

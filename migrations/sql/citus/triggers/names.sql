-- Only on a cluster, like the table. A row is deleted when its thread is erased, and is never changed.
CREATE TRIGGER refuse_change BEFORE UPDATE ON compaction_store.names
    FOR EACH ROW EXECUTE FUNCTION compaction_store.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON compaction_store.names
    FOR EACH STATEMENT EXECUTE FUNCTION compaction_store.refuse_change();
ALTER TABLE compaction_store.names ENABLE ALWAYS TRIGGER refuse_change;
ALTER TABLE compaction_store.names ENABLE ALWAYS TRIGGER refuse_truncate;

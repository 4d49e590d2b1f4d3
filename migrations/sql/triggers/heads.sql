CREATE TRIGGER refuse_change BEFORE DELETE ON compaction_store.heads
    FOR EACH ROW EXECUTE FUNCTION compaction_store.refuse_change();
CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON compaction_store.heads
    FOR EACH STATEMENT EXECUTE FUNCTION compaction_store.refuse_change();
ALTER TABLE compaction_store.heads ENABLE ALWAYS TRIGGER refuse_change;
ALTER TABLE compaction_store.heads ENABLE ALWAYS TRIGGER refuse_truncate;

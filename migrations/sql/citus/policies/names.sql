-- Only on a cluster, like the table. The policies of the other tables have a sub-select here, which Citus does not
-- support, so `distribute` replaces those policies.
ALTER TABLE compaction_store.names ENABLE ROW LEVEL SECURITY;
ALTER TABLE compaction_store.names FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON compaction_store.names
    USING (tenant = compaction_store.tenant())
    WITH CHECK (tenant = compaction_store.tenant());

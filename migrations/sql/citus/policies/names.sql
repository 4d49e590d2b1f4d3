-- Only on a cluster, like the table. On a single server, the policies call tenant() in a sub-select. Citus does not
-- support that, so `distribute` replaces the policies of the other tables.
ALTER TABLE compaction_store.names ENABLE ROW LEVEL SECURITY;
ALTER TABLE compaction_store.names FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON compaction_store.names
    USING (tenant = compaction_store.tenant())
    WITH CHECK (tenant = compaction_store.tenant());

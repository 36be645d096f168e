CREATE TABLE tasks (
	id VARCHAR(40) NOT NULL,
	title TEXT NOT NULL,
	directory TEXT NOT NULL,
	workspace_path TEXT NOT NULL,
	repository TEXT,
	project TEXT,
	reason TEXT,
	schedule_id VARCHAR(40),
	parent_task_id VARCHAR(40),
	status VARCHAR(20) NOT NULL,
	workspace_kind VARCHAR(20) NOT NULL,
	waiting_for VARCHAR(20),
	stop VARCHAR(20),
	limit_reached TEXT,
	shell VARCHAR(64),
	workspace_branch TEXT,
	workspace_base TEXT,
	workspace_base_commit TEXT,
	workspace_commit TEXT,
	workspace_owner VARCHAR(40),
	created_at BIGINT NOT NULL,
	started_at BIGINT,
	ended_at BIGINT,
	archived_at BIGINT,
	merged_at BIGINT,
	seen_at BIGINT,
	flagged_at BIGINT,
	snoozed_until BIGINT,
	idempotency_key VARCHAR(200),
	prompt TEXT NOT NULL,
	agent TEXT NOT NULL,
	system_prompt TEXT,
	model TEXT,
	question TEXT,
	report TEXT,
	requested_base TEXT,
	result TEXT,
	priority INTEGER NOT NULL,
	deps_policy VARCHAR(20) NOT NULL,
	continue_from VARCHAR(40),
	run_id VARCHAR(40),
	fork_session BOOLEAN NOT NULL,
	fallback_agents JSON NOT NULL,
	retry JSON NOT NULL,
	check_specs JSON NOT NULL,
	env JSON NOT NULL,
	mcp JSON NOT NULL,
	tags JSON NOT NULL,
	context JSON NOT NULL,
	timeout_s FLOAT,
	budget_usd FLOAT,
	max_turns INTEGER,
	starting_tree TEXT,
	not_before BIGINT,
	next_mode VARCHAR(10) DEFAULT 'fresh' NOT NULL,
	next_message TEXT,
	tries INTEGER DEFAULT '0' NOT NULL,
	coordinate BOOLEAN DEFAULT 0 NOT NULL,
	interactive BOOLEAN DEFAULT 0 NOT NULL,
	read_only BOOLEAN DEFAULT 0 NOT NULL,
	browser BOOLEAN DEFAULT 0 NOT NULL,
	tools JSON DEFAULT '[]' NOT NULL,
	template TEXT,
	guidelines TEXT,
	CONSTRAINT pk_tasks PRIMARY KEY (id),
	CONSTRAINT uq_tasks_idempotency_key UNIQUE (idempotency_key)
);
CREATE INDEX ix_tasks_status_priority_id ON tasks (status, priority, id);
CREATE INDEX ix_tasks_status_id ON tasks (status, id);
CREATE INDEX ix_tasks_status_not_before ON tasks (status, not_before);
CREATE INDEX ix_tasks_project_id ON tasks (project, id);
CREATE INDEX ix_tasks_template ON tasks (template);
CREATE INDEX ix_tasks_workspace_owner ON tasks (workspace_owner);
CREATE INDEX ix_tasks_repository_id ON tasks (repository, id);
CREATE INDEX ix_tasks_end ON tasks (substr(id, 27));
CREATE INDEX ix_tasks_parent_task_id ON tasks (parent_task_id);
CREATE INDEX ix_tasks_run_id_id ON tasks (run_id, id);
CREATE INDEX ix_tasks_archived_at_id ON tasks (archived_at, id);
CREATE INDEX ix_tasks_ended_at_id ON tasks (ended_at, id);
CREATE TABLE accounts (
	id VARCHAR(120) NOT NULL,
	paused_until BIGINT,
	verified_at BIGINT,
	reason TEXT,
	failures_in_a_row INTEGER DEFAULT '0' NOT NULL,
	windows JSON,
	CONSTRAINT pk_accounts PRIMARY KEY (id)
);
CREATE TABLE proofs (
	digest VARCHAR(64) NOT NULL,
	proved BOOLEAN,
	proof TEXT NOT NULL,
	CONSTRAINT pk_proofs PRIMARY KEY (digest)
);
CREATE TABLE deliveries (
	owner VARCHAR(40) NOT NULL,
	mode VARCHAR(10) NOT NULL,
	status VARCHAR(10) NOT NULL,
	force BOOLEAN NOT NULL,
	draft BOOLEAN NOT NULL,
	reason TEXT,
	"commit" TEXT,
	forge TEXT,
	branch TEXT,
	url TEXT,
	pushed JSON NOT NULL,
	number INTEGER,
	state VARCHAR(10),
	ci VARCHAR(10),
	tries INTEGER NOT NULL,
	heard_at BIGINT,
	next_at BIGINT,
	updated_at BIGINT,
	CONSTRAINT pk_deliveries PRIMARY KEY (owner)
);
CREATE INDEX ix_deliveries_status_next_at ON deliveries (status, next_at);
CREATE TABLE processes (
	owner VARCHAR(40) NOT NULL,
	name TEXT NOT NULL,
	directory VARCHAR(40) NOT NULL,
	secret VARCHAR(64) NOT NULL,
	begun_at BIGINT NOT NULL,
	succeeded BOOLEAN,
	CONSTRAINT pk_processes PRIMARY KEY (owner, name),
	CONSTRAINT uq_processes_directory UNIQUE (directory)
);
CREATE TABLE events (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
	at BIGINT NOT NULL,
	kind VARCHAR(40) NOT NULL,
	task_id VARCHAR(40),
	attempt_id VARCHAR(40),
	run_id VARCHAR(40),
	data JSON NOT NULL
);
CREATE INDEX ix_events_run_id_seq ON events (run_id, seq);
CREATE INDEX ix_events_task_id_seq ON events (task_id, seq);
CREATE TABLE runs (
	id VARCHAR(40) NOT NULL,
	title TEXT NOT NULL,
	directory TEXT NOT NULL,
	workspace_path TEXT NOT NULL,
	repository TEXT,
	project TEXT,
	reason TEXT,
	schedule_id VARCHAR(40),
	parent_task_id VARCHAR(40),
	status VARCHAR(20) NOT NULL,
	workspace_kind VARCHAR(20) NOT NULL,
	waiting_for VARCHAR(20),
	stop VARCHAR(20),
	limit_reached TEXT,
	shell VARCHAR(64),
	workspace_branch TEXT,
	workspace_base TEXT,
	workspace_base_commit TEXT,
	workspace_commit TEXT,
	workspace_owner VARCHAR(40),
	created_at BIGINT NOT NULL,
	started_at BIGINT,
	ended_at BIGINT,
	archived_at BIGINT,
	merged_at BIGINT,
	seen_at BIGINT,
	flagged_at BIGINT,
	snoozed_until BIGINT,
	idempotency_key VARCHAR(200),
	pattern TEXT NOT NULL,
	spec JSON NOT NULL,
	progress JSON NOT NULL,
	parent_id VARCHAR(40),
	may_ask BOOLEAN DEFAULT 1 NOT NULL,
	result JSON,
	performer TEXT,
	executions INTEGER DEFAULT '0' NOT NULL,
	active_s FLOAT DEFAULT '0' NOT NULL,
	active_since BIGINT,
	CONSTRAINT pk_runs PRIMARY KEY (id),
	CONSTRAINT uq_runs_idempotency_key UNIQUE (idempotency_key)
);
CREATE INDEX ix_runs_repository_id ON runs (repository, id);
CREATE INDEX ix_runs_status_id ON runs (status, id);
CREATE INDEX ix_runs_end ON runs (substr(id, 26));
CREATE INDEX ix_runs_parent_id_id ON runs (parent_id, id);
CREATE INDEX ix_runs_parent_task_id ON runs (parent_task_id);
CREATE INDEX ix_runs_ended_at_id ON runs (ended_at, id);
CREATE TABLE schedules (
	id VARCHAR(40) NOT NULL,
	title TEXT NOT NULL,
	kind TEXT NOT NULL,
	directory TEXT NOT NULL,
	spec JSON NOT NULL,
	project TEXT,
	cron TEXT,
	timezone TEXT,
	reason TEXT,
	every_s FLOAT,
	"after" VARCHAR(40),
	missed VARCHAR(20) NOT NULL,
	status VARCHAR(20) NOT NULL,
	overlap BOOLEAN NOT NULL,
	max_runs INTEGER,
	at BIGINT,
	expires_at BIGINT,
	next_at BIGINT,
	ended_at BIGINT,
	started INTEGER DEFAULT '0' NOT NULL,
	created_at BIGINT NOT NULL,
	idempotency_key VARCHAR(200),
	CONSTRAINT pk_schedules PRIMARY KEY (id),
	CONSTRAINT uq_schedules_idempotency_key UNIQUE (idempotency_key)
);
CREATE INDEX ix_schedules_after ON schedules ("after");
CREATE INDEX ix_schedules_end ON schedules (substr(id, 31));
CREATE INDEX ix_schedules_status_next_at ON schedules (status, next_at);
CREATE TABLE learnings (
	id VARCHAR(40) NOT NULL,
	title TEXT NOT NULL,
	content TEXT NOT NULL,
	author TEXT NOT NULL,
	tags JSON NOT NULL,
	scope VARCHAR(10) NOT NULL,
	status VARCHAR(10) NOT NULL,
	project TEXT,
	reason TEXT,
	task_id VARCHAR(40),
	created_at BIGINT NOT NULL,
	changed_at BIGINT NOT NULL,
	reviewed_at BIGINT,
	CONSTRAINT pk_learnings PRIMARY KEY (id)
);
CREATE INDEX ix_learnings_task_id ON learnings (task_id);
CREATE INDEX ix_learnings_end ON learnings (substr(id, 31));
CREATE INDEX ix_learnings_project_id ON learnings (project, id);
CREATE INDEX ix_learnings_status_reviewed_at ON learnings (status, reviewed_at);
CREATE VIRTUAL TABLE learnings_index USING fts5(id UNINDEXED, title, content, tags, tokenize='porter unicode61');
CREATE TABLE positions (
	reader VARCHAR(20) NOT NULL,
	seq BIGINT NOT NULL,
	CONSTRAINT pk_positions PRIMARY KEY (reader)
);
CREATE TABLE projects (
	name TEXT NOT NULL,
	directories JSON NOT NULL,
	created_at BIGINT NOT NULL,
	archived_at BIGINT,
	CONSTRAINT pk_projects PRIMARY KEY (name)
);
CREATE TABLE templates (
	name VARCHAR(64) NOT NULL,
	guidelines TEXT NOT NULL,
	agent TEXT,
	model TEXT,
	directory TEXT,
	created_at BIGINT NOT NULL,
	changed_at BIGINT NOT NULL,
	CONSTRAINT pk_templates PRIMARY KEY (name)
);
CREATE TABLE notes (
	scope TEXT NOT NULL,
	"key" TEXT NOT NULL,
	value TEXT,
	version BIGINT NOT NULL,
	author VARCHAR(40) NOT NULL,
	task_id VARCHAR(40),
	updated_at BIGINT NOT NULL,
	CONSTRAINT pk_notes PRIMARY KEY (scope, "key")
);
CREATE TABLE locks (
	checkout TEXT NOT NULL,
	path TEXT NOT NULL,
	owner VARCHAR(40) NOT NULL,
	task_id VARCHAR(40),
	reason TEXT,
	ttl_s FLOAT NOT NULL,
	taken_at BIGINT NOT NULL,
	CONSTRAINT pk_locks PRIMARY KEY (checkout, path, owner)
);
CREATE TABLE task_tags (
	tag TEXT NOT NULL,
	task_id VARCHAR(40) NOT NULL,
	CONSTRAINT pk_task_tags PRIMARY KEY (tag, task_id),
	CONSTRAINT fk_task_tags_task_id FOREIGN KEY(task_id) REFERENCES tasks (id) ON DELETE CASCADE
);
CREATE TABLE dependencies (
	task_id VARCHAR(40) NOT NULL,
	depends_on VARCHAR(40) NOT NULL,
	CONSTRAINT pk_dependencies PRIMARY KEY (task_id, depends_on),
	CONSTRAINT fk_dependencies_task_id FOREIGN KEY(task_id) REFERENCES tasks (id) ON DELETE CASCADE,
	CONSTRAINT fk_dependencies_depends_on FOREIGN KEY(depends_on) REFERENCES tasks (id) ON DELETE CASCADE
);
CREATE INDEX ix_dependencies_depends_on ON dependencies (depends_on);
CREATE TABLE attempts (
	id VARCHAR(40) NOT NULL,
	task_id VARCHAR(40) NOT NULL,
	number INTEGER NOT NULL,
	status VARCHAR(20) NOT NULL,
	mode VARCHAR(10) NOT NULL,
	agent TEXT NOT NULL,
	message TEXT,
	model TEXT,
	model_reason TEXT,
	diagnosis TEXT,
	question TEXT,
	reason TEXT,
	evidence TEXT,
	account TEXT,
	performer TEXT,
	secret VARCHAR(64),
	checked_commit TEXT,
	repository JSON,
	memory JSON,
	handed_in JSON,
	exit_kind VARCHAR(20),
	claimed VARCHAR(20),
	failure VARCHAR(20),
	exit_code INTEGER,
	exit_signal INTEGER,
	warnings JSON NOT NULL,
	started_from TEXT,
	session_id TEXT,
	input_tokens BIGINT,
	output_tokens BIGINT,
	cached_tokens BIGINT,
	turns BIGINT,
	cost_usd FLOAT,
	session_usage JSON,
	output_bytes BIGINT DEFAULT '0' NOT NULL,
	started_at BIGINT NOT NULL,
	ended_at BIGINT,
	CONSTRAINT pk_attempts PRIMARY KEY (id),
	CONSTRAINT uq_attempts_task_id_number UNIQUE (task_id, number),
	CONSTRAINT fk_attempts_task_id FOREIGN KEY(task_id) REFERENCES tasks (id) ON DELETE CASCADE
);
CREATE INDEX ix_attempts_status ON attempts (status);
CREATE TABLE steps (
	run_id VARCHAR(40) NOT NULL,
	position TEXT NOT NULL,
	kind VARCHAR(20) NOT NULL,
	label TEXT NOT NULL,
	subject VARCHAR(40),
	data JSON NOT NULL,
	result JSON,
	error JSON,
	started_at BIGINT NOT NULL,
	ended_at BIGINT,
	CONSTRAINT pk_steps PRIMARY KEY (run_id, position),
	CONSTRAINT fk_steps_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE questions (
	token TEXT NOT NULL,
	task_id VARCHAR(40),
	run_id VARCHAR(40),
	attempt_id VARCHAR(40),
	told BOOLEAN DEFAULT 0 NOT NULL,
	text TEXT NOT NULL,
	choices JSON NOT NULL,
	"default" TEXT,
	answer TEXT,
	status VARCHAR(20) NOT NULL,
	asked_at BIGINT NOT NULL,
	expires_at BIGINT,
	ended_at BIGINT,
	CONSTRAINT pk_questions PRIMARY KEY (token),
	CONSTRAINT fk_questions_task_id FOREIGN KEY(task_id) REFERENCES tasks (id) ON DELETE CASCADE,
	CONSTRAINT fk_questions_run_id FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE INDEX ix_questions_status_asked_at ON questions (status, asked_at);
CREATE INDEX ix_questions_task_id ON questions (task_id);
CREATE INDEX ix_questions_run_id ON questions (run_id);
CREATE TABLE firings (
	schedule_id VARCHAR(40) NOT NULL,
	slot BIGINT NOT NULL,
	at BIGINT NOT NULL,
	outcome VARCHAR(20) NOT NULL,
	reason TEXT,
	subject VARCHAR(40),
	CONSTRAINT pk_firings PRIMARY KEY (schedule_id, slot),
	CONSTRAINT fk_firings_schedule_id FOREIGN KEY(schedule_id) REFERENCES schedules (id) ON DELETE CASCADE
);
CREATE INDEX ix_firings_subject ON firings (subject);
CREATE TABLE checks (
	attempt_id VARCHAR(40) NOT NULL,
	position INTEGER NOT NULL,
	name TEXT NOT NULL,
	output TEXT NOT NULL,
	passed BOOLEAN NOT NULL,
	duration_s FLOAT NOT NULL,
	command TEXT,
	"commit" TEXT,
	directory TEXT,
	proof TEXT,
	exit_code INTEGER,
	out_sha256 VARCHAR(64),
	err_sha256 VARCHAR(64),
	proved BOOLEAN,
	CONSTRAINT pk_checks PRIMARY KEY (attempt_id, position),
	CONSTRAINT fk_checks_attempt_id FOREIGN KEY(attempt_id) REFERENCES attempts (id) ON DELETE CASCADE
);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	PRIMARY KEY (version_num)
);
INSERT INTO alembic_version VALUES ('0001_first_schema')

import { Link, useNavigate } from '@tanstack/react-router';
import type { ReactNode } from 'react';
import { isRun, type Run, type Work } from '../api/client';
import { useProjects } from '../api/knowledge';
import { useNeedPages } from '../api/needs';
import { useActive, useDaemon, useOpenCount, useSchedules } from '../api/queries';
import { hasEnded, progressOf, stateInside, stateOf } from '../model/work';
import { Glyph } from '../parts/glyph';
import { Icon, type IconName } from '../parts/icon';
import { Said } from '../parts/text';
import { useLink } from './link';
import { switchTheme, useScope } from './preferences';

export const Mark = () => (
  <svg viewBox="0 0 20 20" aria-hidden="true">
    <rect width="20" height="20" rx="5" fill="var(--ink)" />
    <path d="M5.2 14.8 14.6 5.4" stroke="var(--on-ink)" strokeWidth="1.9" strokeLinecap="round" />
    <circle cx="5.9" cy="14.1" r="2.1" fill="var(--on-ink)" />
    <path
      d="M6 6.2h3.4M11.6 13.8H15M6 9.2h1.2"
      stroke="var(--on-ink)"
      strokeWidth="1.4"
      strokeLinecap="round"
      opacity=".55"
    />
  </svg>
);

/** The needs in the selected project, counted by the daemon. */
export function useNeeds() {
  const [project] = useScope();
  return useNeedPages(project);
}

function Place(props: { to: string; icon: IconName; children: string; extra?: ReactNode; exact?: boolean }) {
  return (
    <Link
      to={props.to}
      activeOptions={{ exact: props.exact ?? false, includeSearch: false }}
      activeProps={{ 'aria-current': 'page' }}
      title={props.children}
    >
      <Icon name={props.icon} />
      <span className="label">{props.children}</span>
      {props.extra}
    </Link>
  );
}

const many = (count: number | undefined) => (count ? <span className="n">{count}</span> : null);

export function Sidebar({ showKeys }: { showKeys: () => void }) {
  const needs = useNeeds().rows;
  const [project] = useScope();
  const active = useActive(project);
  const schedules = useSchedules();
  const open = useOpenCount(project);
  const planned = schedules.data?.schedules.filter((schedule) => schedule.status === 'active');
  return (
    <nav className="side" aria-label="Views">
      <div className="brand">
        <Mark />
        <span className="label">Kapelle</span>
      </div>
      <Scope />
      <Link className="btn new" to="/new">
        <Icon name="plus" />
        <span className="label">New</span>
        <kbd>c</kbd>
      </Link>
      <div className="nav">
        <Place
          to="/"
          icon="now"
          exact
          extra={
            needs > 0 && (
              <span className="n you" role="img" aria-label={`${needs} need you`}>
                {needs}
              </span>
            )
          }
        >
          Now
        </Place>
        <Place to="/work" icon="work" extra={many(open)}>
          Work
        </Place>
        <Place to="/schedules" icon="schedules" extra={many(planned?.length)}>
          Schedules
        </Place>
        <Place to="/knowledge" icon="knowledge">
          Knowledge
        </Place>
        <Place to="/usage" icon="usage">
          Usage
        </Place>
        <Place to="/system" icon="system">
          System
        </Place>
      </div>
      <UnderWay work={active.work} />
      <Foot showKeys={showKeys} />
    </nav>
  );
}

const MANAGE = '\u0000';

/** Tells whether a project was made for one run, whose id ends its name. */
const isOfRun = (name: string): boolean => / \([0-9a-z]{6}\)$/.test(name);

export function Scope({ chosen }: { chosen?: () => void }) {
  const [project, choose] = useScope();
  const navigate = useNavigate();
  const known = useProjects().data ?? [];
  const present = known.filter((one) => !one.archived_at);
  const names = new Set(present.filter((one) => !isOfRun(one.name)).map(({ name }) => name));
  if (project) names.add(project);
  const ofRuns = present.filter((one) => isOfRun(one.name) && one.open > 0 && one.name !== project);
  return (
    <span className="scopes">
      <Icon name="folder" />
      <select
        className="scope"
        aria-label="Project"
        title={project ?? 'All projects'}
        value={project ?? ''}
        onChange={({ target }) => {
          if (target.value === MANAGE) navigate({ to: '/projects' });
          else choose(target.value);
          chosen?.();
        }}
      >
        <option value="">All projects</option>
        {[...names].sort().map((name) => (
          <option key={name}>{name}</option>
        ))}
        {ofRuns.length > 0 && (
          <optgroup label="Active runs">
            {ofRuns.map(({ name }) => (
              <option key={name}>{name}</option>
            ))}
          </optgroup>
        )}
        <option value={MANAGE}>Projects and archive…</option>
      </select>
    </span>
  );
}

const MOST_RUNS = 10;

/** Active runs, in two levels. */
function UnderWay({ work }: { work: Work[] }) {
  const runs = work.filter(isRun).filter((run) => !hasEnded(run));
  const inside = (parent: Run) => runs.filter((run) => run.parent_id === parent.id);
  const rows = runs
    .filter((run) => !runs.some((other) => other.id === run.parent_id))
    .flatMap((run) => [[run, ''] as const, ...inside(run).map((child) => [child, 'lv1'] as const)])
    .slice(0, MOST_RUNS);
  if (rows.length === 0) return null;
  return (
    <>
      <h2 className="label">Active runs</h2>
      <div className="under">
        {rows.map(([run, level]) => (
          <Link
            key={run.id}
            className={level}
            to="/runs/$id/{-$tab}"
            params={{ id: run.id }}
            activeProps={{ 'aria-current': 'page' }}
          >
            <Glyph
              state={inside(run).some((child) => stateOf(child) === 'you') ? 'you' : stateInside(run, work)}
            />
            <span className="cut">
              <Said>{run.title}</Said>
            </span>
            <span className="n">{progressOf(run)}</span>
          </Link>
        ))}
      </div>
    </>
  );
}

function Foot({ showKeys }: { showKeys: () => void }) {
  const link = useLink();
  const daemon = useDaemon();
  const words = { live: 'Live', connecting: 'Connecting', away: 'Offline' }[link.state];
  return (
    <div className="foot">
      <span className="live">
        <span className={`dot ${link.state}`} />
        <span className="label">{words}</span>
      </span>
      <span className="label">{daemon.data && `v${daemon.data.version}`}</span>
      <button type="button" className="btn quiet icon sm" aria-label="Theme" onClick={switchTheme}>
        <Icon name="theme" />
      </button>
      <button type="button" className="btn quiet icon sm" aria-label="Keys" onClick={showKeys}>
        <Icon name="help" />
      </button>
    </div>
  );
}

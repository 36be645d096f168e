import { useQueryClient } from '@tanstack/react-query';
import { Link, Outlet, useNavigate, useRouter } from '@tanstack/react-router';
import { type ReactNode, useEffect, useState } from 'react';
import { onUnauthorized } from '../api/client';
import { keepLive } from '../api/live';
import { retryNow } from '../api/sse';
import { Button } from '../parts/controls';
import { Glyph } from '../parts/glyph';
import { Icon } from '../parts/icon';
import { Toasts } from '../parts/toast';
import { KeyList } from './key_list';
import { type Keys, useKeys } from './keys';
import { useLink } from './link';
import { useNotifier } from './notify';
import { Palette } from './palette';
import { Sidebar, useNeeds } from './sidebar';

type Open = 'palette' | 'keys' | 'more' | null;

const PLACES: Record<string, string> = {
  n: '/',
  w: '/work',
  s: '/schedules',
  k: '/knowledge',
  u: '/usage',
  y: '/system',
};

/** What stays around every view. */
export function Layout() {
  const queries = useQueryClient();
  const navigate = useNavigate();
  const [open, setOpen] = useState<Open>(null);
  useEffect(() => {
    const leave = onUnauthorized(() => navigate({ to: '/login' }));
    const stop = keepLive(queries);
    return () => {
      leave();
      stop();
    };
  }, [queries, navigate]);
  useNotifier();
  const places: Keys = Object.fromEntries(
    Object.entries(PLACES).map(([key, to]) => [`g ${key}`, () => void navigate({ to })]),
  );
  useKeys({
    ...places,
    '/': () => setOpen('palette'),
    '?': () => setOpen('keys'),
    c: () => void navigate({ to: '/new' }),
    Escape: () => setOpen(null),
  });
  return (
    <Toasts>
      <a className="skip" href="#main">
        To the content
      </a>
      <Announcer />
      <div className="app">
        <Sidebar showKeys={() => setOpen('keys')} />
        <div className="main">
          <Outlet />
        </div>
        <TabBar open={setOpen} />
      </div>
      {open === 'palette' && <Palette close={() => setOpen(null)} />}
      {open === 'keys' && <KeyList close={() => setOpen(null)} />}
    </Toasts>
  );
}

/** The head of a view, and what the whole page has to say. */
export function View(props: { title: string; head?: ReactNode; end?: ReactNode; children: ReactNode }) {
  const { needs } = useNeeds();
  useEffect(() => {
    document.title = `${needs.length > 0 ? `(${needs.length}) ` : ''}${props.title} · Kapelle`;
  }, [needs.length, props.title]);
  return (
    <>
      <header className="top">
        {props.head ?? <h1>{props.title}</h1>}
        {props.end ?? (
          <button type="button" className="find" onClick={() => window.dispatchEvent(slash())}>
            <Icon name="search" />
            <span>Search or go to</span>
            <kbd>/</kbd>
          </button>
        )}
      </header>
      <Away />
      <main id="main">{props.children}</main>
    </>
  );
}

const slash = () => new KeyboardEvent('keydown', { key: '/' });

function Away() {
  const link = useLink();
  if (link.state !== 'away') return null;
  const since = new Date(link.since).toLocaleTimeString('en-GB');
  return (
    <div className="banner" role="alert">
      <Glyph state="bad" />
      <span>
        <b>The daemon does not answer.</b> What you see is from {since}. Agents go on without it; this page
        reconnects by itself.
      </span>
      <Button small onClick={retryNow}>
        Try now
      </Button>
    </div>
  );
}

function TabBar({ open }: { open: (what: Open) => void }) {
  const { needs } = useNeeds();
  const router = useRouter();
  const current = (exact: boolean) => ({
    activeOptions: { exact, includeSearch: false },
    activeProps: { 'aria-current': 'page' as const },
  });
  return (
    <nav className="tabbar" aria-label="Places">
      <Link to="/" {...current(true)}>
        <Icon name="now" />
        Now{needs.length > 0 && <span className="n">{needs.length}</span>}
      </Link>
      <Link to="/work" {...current(false)}>
        <Icon name="work" />
        Work
      </Link>
      <Link to="/new" {...current(false)}>
        <Icon name="plus" />
        New
      </Link>
      <button type="button" onClick={() => open('palette')}>
        <Icon name="search" />
        Search
      </button>
      <button
        type="button"
        onClick={() => router.navigate({ to: '/system/{-$tab}', params: { tab: 'places' } })}
      >
        <Icon name="more" />
        More
      </button>
    </nav>
  );
}

/** Tells people who do not see the page when something new needs them. */
function Announcer() {
  const { needs } = useNeeds();
  const [text, setText] = useState('');
  const count = needs.length;
  useEffect(() => {
    const timer = setTimeout(() => setText(count ? `${count} need you.` : 'Nothing needs you.'), 5000);
    return () => clearTimeout(timer);
  }, [count]);
  return (
    <p className="vh" aria-live="polite">
      {text}
    </p>
  );
}

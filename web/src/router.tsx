import { createRootRoute, createRoute, createRouter } from '@tanstack/react-router';
import { lazyPart } from './lazy';
import { View as Frame, Layout } from './shell/layout';
import { Login } from './views/login';
import { Broken, Missing } from './views/missing';
import { Now } from './views/now/now';

const root = createRootRoute();
const login = createRoute({ getParentRoute: () => root, path: '/login', component: Login });
const inside = createRoute({ getParentRoute: () => root, id: 'inside', component: Layout });

type Load = () => Promise<{ View: () => React.ReactNode }>;

/** A place whose code is loaded when it is needed. The router's own way replaces the page if that fails. */
const place = (load: Load) =>
  lazyPart(
    async () => (await load()).View,
    (shown) => (
      <Frame title="Kapelle">
        <div className="page">{shown}</div>
      </Frame>
    ),
  );

const view = <Path extends string>(path: Path, load: Load) =>
  createRoute({ getParentRoute: () => inside, path, component: place(load) });

const now = createRoute({ getParentRoute: () => inside, path: '/', component: Now });

interface WorkSearch {
  view?: 'list' | 'graph' | 'timeline';
  q?: string;
}

const work = createRoute({
  getParentRoute: () => inside,
  path: '/work',
  validateSearch: (search: Record<string, unknown>): WorkSearch => ({
    view: search.view === 'graph' || search.view === 'timeline' ? search.view : undefined,
    q: typeof search.q === 'string' && search.q ? search.q : undefined,
  }),
  component: place(() => import('./views/work/work')),
});

interface NewSearch {
  pattern?: string;
  template?: string;
  when?: 'cron';
}

const fresh = createRoute({
  getParentRoute: () => inside,
  path: '/new',
  validateSearch: (search: Record<string, unknown>): NewSearch => ({
    pattern: typeof search.pattern === 'string' ? search.pattern : undefined,
    template: typeof search.template === 'string' ? search.template : undefined,
    when: search.when === 'cron' ? search.when : undefined,
  }),
  component: place(() => import('./views/new/new')),
});

const search = createRoute({
  getParentRoute: () => inside,
  path: '/search',
  validateSearch: (given: Record<string, unknown>): { q?: string } => ({
    // What looks like a number or a list is text all the same.
    q: given.q === undefined || given.q === '' ? undefined : String(given.q),
  }),
  component: place(() => import('./views/search')),
});

const tree = root.addChildren([
  login,
  inside.addChildren([
    now,
    work,
    fresh,
    view('/tasks/$id/{-$tab}', () => import('./views/task/task')),
    view('/runs/$id/{-$tab}', () => import('./views/run/run')),
    view('/schedules', () => import('./views/schedules/schedules')),
    view('/schedules/$id', () => import('./views/schedules/schedule')),
    view('/knowledge/{-$tab}', () => import('./views/knowledge/knowledge')),
    view('/projects', () => import('./views/knowledge/projects')),
    view('/report', () => import('./views/report')),
    view('/usage', () => import('./views/usage/usage')),
    view('/system/{-$tab}', () => import('./views/system/system')),
    search,
    createRoute({ getParentRoute: () => inside, path: '$', component: () => <Missing /> }),
  ]),
]);

export const router = createRouter({
  routeTree: tree,
  defaultPreload: 'intent',
  scrollRestoration: true,
  defaultNotFoundComponent: () => <Missing />,
  // What goes wrong in a view leaves the page around it.
  defaultErrorComponent: ({ error }) => <Broken error={error} />,
});

declare module '@tanstack/react-router' {
  interface Register {
    router: typeof router;
  }
}
